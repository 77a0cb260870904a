"""The error of this package."""


class WorkloadError(Exception):
    """A workload that cannot be found, built or read; one line: the thing, the rule, the way out.

    Args:
        message: the whole line.
        field: what is wrong, so that a caller can put its own path before it: `name` for the reference to
            the workload, a parameter, or an attribute of the workload; None when no single field is.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
