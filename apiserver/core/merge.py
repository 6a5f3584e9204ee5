"""Patches of JSON values."""

from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, but for lists named `conditions`, which merge by `type` as Kubernetes' strategic merge patch does.

    Two writers share a pod's conditions, the scheduler and the kubelet; neither sends the other's.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key == "conditions" and isinstance(value, list):
            merged[key] = _merge_conditions(merged.get(key), value)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _merge_conditions(target: Any, patch: list[Any]) -> list[Any]:
    merged = list(target) if isinstance(target, list) else []
    places = {item.get("type"): at for at, item in enumerate(merged) if isinstance(item, dict)}
    for item in patch:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in places:
            merged[places[kind]] = {**merged[places[kind]], **item}
        else:
            places[kind] = len(merged)
            merged.append(item)
    return merged
