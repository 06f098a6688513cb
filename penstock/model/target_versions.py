"""The versions of a store's target, of which readers see one: how a sink's documents are replaced without a gap."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol

from penstock.errors import optional_packages

if TYPE_CHECKING:
    from penstock.model.output import Output
    from penstock.model.stream import Stream


class TargetVersions(Protocol):
    """What a store has under the name of an output, and a new version of it that is built beside that.

    A process may be killed in any call: the call that is made again does the rest. Each may raise Wait, if the store is
    away, or PenstockError.
    """

    @property
    def new(self) -> Output:
        """The output that writes the new version, which readers do not see."""

    def prepare(self) -> None:
        """Make the target of the new version. What earlier replacements have left is removed."""

    def show(self) -> None:
        """Let readers see the new version under the name of the output, at once, and keep the one before.

        Nothing may write to either meanwhile. If it is shown already, nothing is changed.
        """

    def discard(self) -> None:
        """Remove the new version if readers do not see it; one that was kept of before stays."""

    def forget(self) -> None:
        """Remove the version before the present one."""

    def close(self) -> None:
        """Release resources."""


VersionsOpener = Callable[["Output", str, bool], TargetVersions]
"""Of the output, the id of the replacement, and whether the version before is to be shown again."""


def versioned_output(stream: Stream) -> Output | None:
    """The output of a sink whose documents can be built anew beside those that readers see; None for other streams."""
    outputs = list(stream.outputs.values())
    return outputs[0] if len(outputs) == 1 and outputs[0].versions and not outputs[0].replacement_obstacle else None


def open_versions(output: Output, replacement: str, *, back: bool = False) -> TargetVersions:
    """The versions of an output's target.

    Args:
        output: The output, which has no `replacement_obstacle`.
        replacement: The id of the replacement.
        back: Whether the version before is to be shown again.
    """
    with optional_packages():
        opener: VersionsOpener = resolve_name(output.versions)
    return opener(output, replacement, back)
