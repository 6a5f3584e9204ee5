"""KubeSchedulerConfiguration files: what is wrong is named by line and path, and what is right is merged as Kubernetes does."""

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.configuration.read import FILE_BYTES_MAX, default_configuration, read_configuration
from scheduler.configuration.registry import Registry
from scheduler.configuration.types import ConfigurationErrors, ProfileConfiguration
from scheduler.core.framework import PerNodeFilter, Plugin
from scheduler.plugins.registry import PLUGINS, WEIGHTS, default_profile
from scheduler.reloading import make_profile

RATIO = "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [%s]}}}"
SOFT = "topologyKey: a, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway"
ADDED = (
    "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [%s]}]}}}"
)
TERM = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def profile(text: str, registry: Registry | None = None) -> ProfileConfiguration:
    (only,) = read_configuration(HEAD + text, "f", registry).profiles
    return only


def problems(text: str, registry: Registry | None = None) -> list[tuple[int, str, str]]:
    with pytest.raises(ConfigurationErrors) as caught:
        read_configuration(text if text.startswith(("api", "{")) else HEAD + text, "f", registry)
    return [(problem.line, problem.path, problem.message) for problem in caught.value.problems]


def test_the_default_configuration_is_the_default_profile() -> None:
    (read,) = default_configuration().profiles
    made, wanted = make_profile(read), default_profile()
    assert made.scheduler_name == "default-scheduler"
    for point in ("pre_enqueue", "pre_filter", "filter", "post_filter", "pre_score", "reserve", "unreserve", "permit"):
        names = [[plugin.name for plugin in getattr(each, point)] for each in (made, wanted)]
        assert names[0] == names[1], point
    scores = [[(item.plugin.name, item.weight) for item in each.score] for each in (made, wanted)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("plugins", "point", "names"),
    [
        # What is enabled at a point and by multiPoint too comes first, in the order given there.
        ("score: {enabled: [{name: ImageLocality}, {name: NodeAffinity}]}", "score", ["ImageLocality", "NodeAffinity"]),
        # "*" at a point takes out what multiPoint brought.
        ("score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}", "score", ["ImageLocality"]),
        ("filter: {disabled: [{name: '*'}]}", "filter", []),
        # "*" at multiPoint takes out all defaults; what stands there itself stays.
        (
            "multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodePorts}]}",
            "filter",
            ["NodePorts"],
        ),
        # What is disabled and enabled at the same point stands last there: it is not what multiPoint brought.
        (
            "filter: {disabled: [{name: NodeName}], enabled: [{name: NodeName}, {name: NodePorts}]}",
            "filter",
            ["NodePorts", "NodeUnschedulable", "TaintToleration"],
        ),
        # A plugin that is off everywhere can be on at one point.
        ("multiPoint: {disabled: [{name: NodePorts}]}\n    filter: {enabled: [{name: NodePorts}]}", "filter", None),
    ],
)
def test_plugin_sets_are_merged_as_kubernetes_does(plugins: str, point: str, names: list[str] | None) -> None:
    read = profile(f"profiles:\n- plugins:\n    {plugins}\n")
    found = list(read.points[point])
    if names is None:
        assert found[-1] == "NodePorts" and "NodePorts" not in read.points["preFilter"]
    else:
        assert found[: len(names)] == names
        assert len(found) == len(names) or "'*'" not in plugins


@pytest.mark.parametrize(
    ("plugins", "weight"),
    [
        ("{}", WEIGHTS["NodeAffinity"]),
        ("{multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}", 7),
        ("{score: {enabled: [{name: NodeAffinity, weight: 9}]}}", 9),
        (
            "{multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}, score: {enabled: [{name: NodeAffinity, weight: 9}]}}",
            9,
        ),
        ("{score: {enabled: [{name: NodeAffinity}]}}", 1),
    ],
)
def test_the_weight_at_score_counts_before_that_of_multi_point(plugins: str, weight: int) -> None:
    assert profile(f"profiles:\n- plugins: {plugins}\n").weights["NodeAffinity"] == weight


def test_a_plugin_of_multi_point_keeps_its_place_when_its_weight_is_given() -> None:
    read = profile("profiles:\n- plugins: {multiPoint: {enabled: [{name: NodeAffinity, weight: 7}]}}\n")
    assert read.points == default_configuration().profiles[0].points


@pytest.mark.parametrize(
    ("text", "line", "path", "says"),
    [
        ("clientConnection: {burst: -1}\n", 3, "clientConnection.burst", "non-negative"),
        (
            "leaderElection: {leaseDuration: 15s, renewDeadline: 1m30s}\n",
            3,
            "leaderElection.leaseDuration",
            "leaseDuration (15s) must be greater than renewDeadline (1m30s)",
        ),
        ("leaderElection: {renewDeadline: 1s}\n", 3, "leaderElection.renewDeadline", "greater than retryPeriod (2s)"),
        ("leaderElection: {leaseDuration: -1s}\n", 3, "leaderElection.leaseDuration", "greater than zero"),
        ("leaderElection: {resourceLock: endpoints}\n", 3, "leaderElection.resourceLock", "must be leases"),
        ("percentageOfNodesToScore: .inf\n", 3, "percentageOfNodesToScore", "wanted a finite number, found inf"),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: '*'}]}}\n",
            4,
            "profiles[0].plugins.score.enabled[0].name",
            "'*' can be disabled, not enabled",
        ),
        (
            "profiles:\n- plugins: {score: {disabled: [{}]}}\n",
            4,
            "profiles[0].plugins.score.disabled[0].name",
            "is missing",
        ),
        ("parallelism: 0\n", 3, "parallelism", "greater than zero"),
        ("percentageOfNodesToScore: 101\n", 3, "percentageOfNodesToScore", "not in the range 0 to 100"),
        ("profiles:\n- percentageOfNodesToScore: -1\n", 4, "profiles[0].percentageOfNodesToScore", "range"),
        ("podInitialBackoffSeconds: -1\n", 3, "podInitialBackoffSeconds", "greater than 0"),
        ("podInitialBackoffSeconds: 20\n", 3, "podInitialBackoffSeconds", "at least podInitialBackoffSeconds 20"),
        ("podMaxBackoffSeconds: 0\n", 3, "podMaxBackoffSeconds", "at least"),
        ("leaderElection: {leaseDuration: 15}\n", 3, "leaderElection.leaseDuration", "wanted a string"),
        ("leaderElection: {leaseDuration: soon}\n", 3, "leaderElection.leaseDuration", "no duration, such as 15s"),
        ("extenders: [{urlPrefix: http://x}]\n", 3, "extenders[0]", "not supported; write a plugin"),
        ("profils: []\n", 3, "profils", 'did you mean "profiles"?'),
        ("profiles:\n- {schedulerName: a}\n- {schedulerName: a}\n", 5, "profiles[1].schedulerName", "twice"),
        ("profiles:\n- {schedulerName: a}\n- {}\n", 5, "profiles[1].schedulerName", "is missing"),
        (
            "profiles:\n- plugins: {filter: {enabled: [{name: NodePort}]}}\n",
            4,
            "profiles[0].plugins.filter.enabled[0].name",
            "did you mean 'NodePorts'?",
        ),
        (
            "profiles:\n- plugins: {score: {disabled: [{name: Nonsense}]}}\n",
            4,
            "profiles[0].plugins.score.disabled[0].name",
            "there is no plugin 'Nonsense'; there are DefaultBinder",
        ),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: NodeAffinity, weight: -1}]}}\n",
            4,
            "profiles[0].plugins.score.enabled[0].weight",
            "-1 must not be negative",
        ),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: NodeAffinity, weight: .nan}]}}\n",
            4,
            "profiles[0].plugins.score.enabled[0].weight",
            "wanted",
        ),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: NodeAffinity, weight: 99999999999}]}}\n",
            4,
            "profiles[0].plugins.score.enabled[0].weight",
            "",
        ),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: NodePorts}]}}\n",
            4,
            "profiles[0].plugins.score.enabled[0].name",
            "NodePorts does not extend score; its points are preFilter, filter",
        ),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: NodeAffinity}, {name: NodeAffinity}]}}\n",
            4,
            "profiles[0].plugins.score.enabled[1].name",
            "enabled twice",
        ),
        (
            "profiles:\n- plugins: {bind: {disabled: [{name: '*'}]}}\n",
            4,
            "profiles[0].plugins.bind",
            "at least one bind",
        ),
        (
            "profiles:\n- plugins: {queueSort: {disabled: [{name: '*'}]}}\n",
            4,
            "profiles[0].plugins.queueSort",
            "exactly one queue sort plugin",
        ),
    ],
)
def test_what_is_wrong_is_named_by_line_and_path(text: str, line: int, path: str, says: str) -> None:
    found = problems(text)
    assert [(at, where) for at, where, _ in found] == [(line, path)]
    assert says in found[0][2]


@pytest.mark.parametrize(
    ("plugin", "args", "path", "says"),
    [
        ("DefaultPreemption", "{minCandidateNodesPercentage: 101}", "minCandidateNodesPercentage", "range 0 to 100"),
        ("DefaultPreemption", "{minCandidateNodesAbsolute: -1}", "minCandidateNodesAbsolute", "negative"),
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}",
            "minCandidateNodesPercentage",
            "cannot be zero at the same time",
        ),
        ("InterPodAffinity", "{hardPodAffinityWeight: 101}", "hardPodAffinityWeight", "range 0 to 100"),
        ("InterPodAffinity", "{hardPodAffinityWeigth: 1}", "hardPodAffinityWeigth", "did you mean"),
        ("InterPodAffinity", "{kind: NodeAffinityArgs}", "kind", "is not InterPodAffinityArgs"),
        ("InterPodAffinity", "{apiVersion: v1}", "apiVersion", "is not kubescheduler.config.k8s.io/v1"),
        ("NodeAffinity", "{addedAffinity: {}}", "addedAffinity", "must have requiredDuring"),
        ("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}", "ignoredResourceGroups[0]", "can't contain '/'"),
        ("NodeResourcesFit", "{scoringStrategy: {type: Fullest}}", "scoringStrategy.type", "is none of LeastAllocated"),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {resources: [{name: cpu, weight: 101}]}}",
            "scoringStrategy.resources[0].weight",
            "range 1 to 100",
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio}}",
            "scoringStrategy.requestedToCapacityRatio.shape",
            "at least one point",
        ),
        (
            "NodeResourcesFit",
            RATIO % "{utilization: 5, score: 1}, {utilization: 5, score: 2}",
            "scoringStrategy.requestedToCapacityRatio.shape[1].utilization",
            "increasing order",
        ),
        (
            "NodeResourcesBalancedAllocation",
            "{resources: [{name: cpu, weight: 2}]}",
            "resources[0].weight",
            "must be 1",
        ),
        ("PodTopologySpread", "{defaultingType: Lots}", "defaultingType", "is none of System, List"),
        (
            "PodTopologySpread",
            "{defaultConstraints: [{topologyKey: a, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}]}",
            "defaultConstraints",
            "must be empty while defaultingType is System",
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{topologyKey: a, maxSkew: 0, whenUnsatisfiable: ScheduleAnyway}]}",
            "defaultConstraints[0].maxSkew",
            "greater than zero",
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{" + SOFT + ", labelSelector: {}}]}",
            "defaultConstraints[0].labelSelector",
            "must not be set: each pod's own services",
        ),
        ("NodePorts", "{a: 1}", "", "NodePorts takes no arguments"),
        ("VolumeZone", "{a: 1}", "", "VolumeZone takes no arguments"),
        ("InterPodAffinity", "{hardPodAffinityWeight: .nan}", "hardPodAffinityWeight", "a finite number, found nan"),
        ("NodeAffinity", ADDED % "{key: a, operator: Near}", f"{TERM}.operator", "'Near' is none of In, NotIn"),
        ("NodeAffinity", ADDED % "{key: a, operator: In}", f"{TERM}.values", "must have a value"),
        ("NodeAffinity", ADDED % "{key: a b, operator: Exists}", f"{TERM}.key", "'a b' is no qualified name"),
        ("NodeAffinity", ADDED % "{key: a, operator: Exists, values: [b]}", f"{TERM}.values", "must be empty"),
        ("NodeAffinity", ADDED % "{key: a, operator: Gt, values: [b]}", f"{TERM}.values[0]", "'b' is no integer"),
        ("NodeResourcesFit", "{ignoredResources: [a b]}", "ignoredResources[0]", "no qualified name"),
        ("NodeResourcesBalancedAllocation", "{resources: [{name: a}, {name: a}]}", "resources[1].name", "twice"),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{" + SOFT + ", nodeTaintsPolicy: Both}]}",
            "defaultConstraints[0].nodeTaintsPolicy",
            "is none of Honor, Ignore",
        ),
        ("VolumeBinding", "{bindTimeoutSeconds: -1}", "bindTimeoutSeconds", "must not be negative"),
        ("VolumeBinding", "{shape: [{utilization: 101}]}", "shape[0].utilization", "range 0 to 100"),
        ("DynamicResources", "{filterTimeout: soon}", "filterTimeout", "no duration"),
        ("VolumeBinding", "{bindTimeoutSecond: 1}", "bindTimeoutSecond", "did you mean"),
    ],
)
def test_wrong_arguments_are_named(plugin: str, args: str, path: str, says: str) -> None:
    found = problems(f"profiles:\n- pluginConfig:\n  - name: {plugin}\n    args: {args}\n")
    where = "profiles[0].pluginConfig[0].args" + (f".{path}" if path else "")
    assert [(line, at) for line, at, _ in found] == [(6, where)]
    assert says in found[0][2]


def test_arguments_of_a_plugin_that_is_off_and_twice_are_named() -> None:
    off = "profiles:\n- plugins: {multiPoint: {disabled: [{name: NodeAffinity}]}}\n"
    off += "  pluginConfig: [{name: NodeAffinity, args: {}}]\n"
    assert problems(off)[0][1:] == (
        "profiles[0].pluginConfig[0]",
        "NodeAffinity is enabled at no point, so its arguments would have no effect",
    )
    twice = "profiles:\n- pluginConfig: [{name: NodeAffinity, args: {}}, {name: NodeAffinity, args: {}}]\n"
    assert problems(twice)[0][1:] == ("profiles[0].pluginConfig[1].name", "'NodeAffinity' is configured twice")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n", "write kubescheduler"),
        ("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfig\n", "write KubeSchedulerConfiguration"),
        (f"{HEAD}---\n{HEAD}", "it has 2 documents"),
        (f"{HEAD}profiles: [\n", ""),
        (f"{HEAD}profiles: 3\n", "wanted a list"),
        (f"{HEAD}kind: again\n", ""),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, says: str) -> None:
    assert says in problems(text)[0][2]


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_lines() -> None:
    text = "parallelism: 0\nprofiles:\n- plugins: {score: {enabled: [{name: Xx}]}}\n  pluginConfig: [{name: Yy}]\n"
    assert [line for line, _, _ in problems(text)] == [3, 5, 6]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("# " + "x" * FILE_BYTES_MAX, 1, "are more than a configuration may have"),
        ("profiles:\n" + "- {}\n" * 101, 104, "there are 101; at most 100 may be"),
        ("profiles:\n- pluginConfig: [" + "{name: NodePorts}," * 5001 + "]\n", 4, "5001 plugins are named"),
        (
            "a: &a [1, 1]\n"
            + "".join(f"b{i}: &{'ab'[i % 2 == 0]} [{f'*{chr(97 + i % 2)},' * 99}]\n" for i in range(5)),
            5,
            "",
        ),
    ],
    ids=["text", "profiles", "plugins", "aliases"],
)
def test_a_huge_file_is_refused_with_a_sentence(text: str, line: int, says: str) -> None:
    (problem,) = problems(text)
    assert problem[0] >= line and says in problem[2]


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    entries = "".join(f"    - {{name: P{at}}}\n" for at in range(300))
    found = problems(f"profiles:\n- plugins:\n   filter:\n    enabled:\n{entries}")
    assert len(found) == 101 and found[100][2] == "and 200 more from here on"


def test_a_file_as_kubernetes_writes_it_is_accepted_whole() -> None:
    read = read_configuration(
        HEAD + "clientConnection: {acceptContentTypes: '', burst: 100, contentType: application/json, qps: 50.5}\n"
        "leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s,\n"
        "  resourceLock: leases, resourceName: kube-scheduler, resourceNamespace: kube-system}\n"
        "profiles:\n- schedulerName: default-scheduler\n  plugins:\n"
        "    preFilter: {enabled: [{name: NodeResourcesFit}, {name: VolumeBinding}]}\n"
        "    preScore: {enabled: [{name: TaintToleration}, {name: NodeResourcesFit}]}\n"
        "    preEnqueue: {enabled: [{name: SchedulingGates}, {name: DefaultPreemption}]}\n",
        "f",
    )
    (only,) = read.profiles
    assert "NodeResourcesFit" not in only.points["preFilter"]
    assert set(only.without_effect) == {
        "VolumeBinding",
        "NodeResourcesFit at preFilter",
        "NodeResourcesFit at preScore",
        "TaintToleration at preScore",
        "DefaultPreemption at preEnqueue",
    }


def test_what_has_no_effect_is_accepted_and_said() -> None:
    read = read_configuration(
        HEAD + "parallelism: 16\nleaderElection: {leaderElect: true, leaseDuration: 15s}\n"
        "profiles:\n- percentageOfNodesToScore: 50\n  plugins: {multiPoint: {enabled: [{name: VolumeBinding}]}}\n",
        "f",
    )
    assert [note.partition(":")[0] for note in read.notes] == ["parallelism", "leaderElection"]
    assert "volumes" in read.profiles[0].without_effect["VolumeBinding"]
    assert "always" in read.profiles[0].without_effect["percentageOfNodesToScore"]
    assert not any("VolumeBinding" in names for names in read.profiles[0].points.values())


class Picky(PerNodeFilter):
    """A plugin of another package."""

    name = "Picky"

    def __init__(self, args: Mapping[str, Any]) -> None:
        self.args = dict(args)


def refuse(_args: Mapping[str, Any]) -> Plugin:
    raise ValueError("it wants more memory")


def leave(_args: Mapping[str, Any]) -> Plugin:
    raise SystemExit(4)


class Pretends(Plugin):
    """Has no filter when it is looked for."""

    name = "Picky"

    @property
    def filter(self) -> None:
        raise ValueError("not today")


def test_a_plugin_of_another_package_gets_its_arguments() -> None:
    registry = Registry(PLUGINS, {"Picky": Picky})
    text = "profiles:\n- plugins: {multiPoint: {enabled: [{name: Picky}]}}\n  pluginConfig: [{name: Picky, args: {a: [1]}}]\n"
    read = profile(text, registry)
    made = read.plugins["Picky"]
    assert isinstance(made, Picky) and made.args == {"a": [1]}
    assert read.points["filter"][-1] == "Picky" and "Picky" not in read.points["score"]


@pytest.mark.parametrize(
    ("registry", "says"),
    [
        (Registry(PLUGINS, {"Picky": refuse}), "Picky cannot be made: ValueError: it wants more memory"),
        (Registry(PLUGINS, {"Picky": leave}), "Picky cannot be made: SystemExit: 4"),
        (Registry(PLUGINS, {"Picky": lambda _args: Pretends()}), "Picky cannot be made: ValueError: not today"),
        (
            Registry(PLUGINS, {"Picky": lambda args: args}),
            "what it makes is no Plugin of that name with an extension point",
        ),
        (Registry(PLUGINS, {}, {"Picky": "p:Q: ImportError: no p"}), "cannot be loaded from p:Q: ImportError: no p"),
    ],
)
def test_a_plugin_of_another_package_that_is_broken_is_named(registry: Registry, says: str) -> None:
    text = "profiles:\n- plugins: {multiPoint: {enabled: [{name: Picky}]}}\n"
    assert any(says in message for _, _, message in problems(text, registry))
    assert profile("profiles: []\n", registry), "and only those who name it are told"
