"""A run in words."""

from tests.simulation.world import FAULTS_SECONDS, Report


def told(report: Report, plant: str = "") -> str:
    """One line when all is well; the violation, its story and how to see it again otherwise."""
    checks = ", ".join(f"{name}: {count}" for name, count in report.checks.items())
    faults = ", ".join(f"{count} {name}" for name, count in report.faults.items())
    line = (
        f"seed {report.seed}: {report.seconds:.0f} virtual seconds, {report.steps} steps, {report.checks_total} checks "
        f"({checks}), {report.revisions} revisions, {report.messages} messages, {report.pods} pods, "
        f"{report.placements} placements, faults: {faults or 'not counted'}; {report.digest}"
    )
    if not report.violation:
        return line
    return "\n".join(
        [line, f"  {report.violation}", *(f"  {line}" for line in report.story), f"  again: {again(report, plant)}"]
    )


def again(report: Report, plant: str) -> str:
    """The command that shows the same run again."""
    seconds = "" if report.faults_seconds == FAULTS_SECONDS else f" --seconds {report.faults_seconds:g}"
    return f"python -m tests.simulation --seed {report.seed}{seconds}{f' --plant {plant}' if plant else ''}"
