"""What a plugin did that it may not do: it raised, or answered what is no answer. Plugins are anybody's code.

A fault is named, the pod is tried again, and the scheduler goes on. A fault of the core itself is not caught.
"""

from scheduler.core.framework import Mask, Plugin
from scheduler.core.status import Code

_CORE = "scheduler.core."


class PluginFault(Exception):
    """`plugin` is named in the message too."""

    def __init__(self, plugin: str, what: str) -> None:
        super().__init__(f"plugin {plugin} {what}")
        self.plugin = plugin


def fault_of(error: BaseException) -> PluginFault | None:
    """The exception as a plugin's fault; None when no plugin's code raised it."""
    if isinstance(error, PluginFault):
        return error
    plugin = raised_by(error)
    return PluginFault(plugin, f"raised {type(error).__name__}: {error}") if plugin else None


def raised_by(error: BaseException) -> str:
    """The plugin in whose method an exception arose, the innermost one; "" where it was none.

    A plugin's function that is no method counts by its caller: the core calls plugins by the name `plugin`.
    """
    name, called, place = "", "", error.__traceback__
    while place is not None:
        frame = place.tb_frame
        owner = frame.f_locals.get("self")
        if isinstance(owner, Plugin):
            name = owner.name
        elif str(frame.f_globals.get("__name__", "")).startswith(_CORE):
            plugin = frame.f_locals.get("plugin")
            called = plugin.name if isinstance(plugin, Plugin) else ""
        elif called:
            name = name or called
        place = place.tb_next
    return name


def check_answer(plugin: str, point: str, answer: object, wanted: type) -> None:
    """Raises PluginFault unless the answer is of the type that the point wants."""
    if not isinstance(answer, wanted):
        raise PluginFault(plugin, f"answered {shown(answer)} at {point}, wanted a {wanted.__name__}")


def check_mask(plugin: str, mask: object, size: int) -> None:
    """Raises PluginFault unless the mask has an integer for each of `size` rows."""
    check_answer(plugin, "Filter", mask, Mask)
    assert isinstance(mask, Mask)
    shape, dtype = getattr(mask.codes, "shape", None), getattr(mask.codes, "dtype", None)
    if shape != (size,) or dtype is None or dtype.kind not in "iub":
        raise PluginFault(plugin, f"answered {dtype or 'no'} codes of shape {shape} for {size} rows at Filter")


def explained(plugin: str, mask: Mask, number: int) -> tuple[Code, tuple[str, ...]]:
    """What a number in the plugin's mask stands for."""
    try:
        code, reasons = mask.explain(number)
    except Exception as error:
        raise PluginFault(plugin, f"could not explain its verdict: {type(error).__name__}: {error}") from error
    if not isinstance(code, Code) or not isinstance(reasons, tuple):
        raise PluginFault(plugin, f"explained its verdict by {shown((code, reasons))}")
    return code, reasons


def shown(answer: object) -> str:
    return f"{type(answer).__name__}" if answer is not None else "nothing"
