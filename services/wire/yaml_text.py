"""Plain data to YAML that reads back as the same data: a string that a bare scalar would not keep is quoted.

PyYAML's own rules for that are not Kubernetes' (it writes the strings y, 1e3 and 08 bare).
"""

from typing import Any

import yaml

from services.wire.documents import resolve

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc]
    """The C dumper where there is one; no anchors, for a manifest is read by people."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _string(dumper: Any, text: str) -> Any:
    bare = isinstance(resolve(text), str) and text not in ("<<", "=")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


_Dumper.add_representer(str, _string)


def to_yaml(*documents: Any) -> str:
    """One YAML text of all `documents` (as `to_json` gives them), keys in their order, `---` between them."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
