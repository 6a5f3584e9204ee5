"""`apply` as kubectl does it: a three-way merge of what was applied last, what is applied now, and what is there.

A field that was applied last and is not applied now goes; a field that is applied now is set; everything else (defaults,
what controllers wrote) stays. Lists of objects are merged by the key that Kubernetes gives them (patchMergeKey in the
API's types); other lists are replaced whole. Pure, over JSON.
"""

from typing import Any

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# Field name of the list -> keys, of which the first that all items have identifies an item.
_MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "port"),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
}


def three_way(last: Any, given: Any, live: Any, field: str = "") -> Any:
    """What should be there. `field` is the name under which the value stands."""
    if isinstance(given, dict) and isinstance(live, dict):
        before = last if isinstance(last, dict) else {}
        merged = {key: item for key, item in live.items() if key in given or key not in before}
        for key, item in given.items():
            merged[key] = three_way(before.get(key), item, live[key], key) if key in live else item
        return merged
    if isinstance(given, list) and isinstance(live, list):
        key = _merge_key(field, given, live)
        if key is not None:
            return _merge_lists(key, last if isinstance(last, list) else [], given, live)
    return given


def _merge_key(field: str, *lists: list[Any]) -> str | None:
    for key in _MERGE_KEYS.get(field, ()):
        if all(isinstance(item, dict) and key in item for items in lists for item in items):
            return key
    return None


def _merge_lists(key: str, last: list[Any], given: list[Any], live: list[Any]) -> list[Any]:
    """The live order, without what is applied no more, then what is new."""
    before = {item[key]: item for item in last if isinstance(item, dict) and key in item}
    wanted = {item[key]: item for item in given}
    merged = []
    for item in live:
        name = item[key]
        if name in wanted:
            merged.append(three_way(before.get(name), wanted.pop(name), item))
        elif name not in before:
            merged.append(item)
    return [*merged, *wanted.values()]
