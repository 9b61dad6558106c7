"""What the API server refused, by what is to be done about it.

ClusterError              .reason (Kubernetes' own word for it), .message
├── NotFound              the object isn't there (or its kind isn't: .kind_missing)
├── Conflict              somebody else wrote first, or the object is being deleted: look again
├── Forbidden             the operator's Role lacks something, a quota is full, or admission refused it
├── Invalid               the object itself is wrong: a condition for the user, no retry
└── Unavailable           no answer in time, too many requests, a fault of the server: try again later
"""

from __future__ import annotations


class ClusterError(Exception):
    def __init__(self, message: str, *, reason: str = "", about: str = "") -> None:
        super().__init__(f"{about}: {message}" if about else message)
        self.message = message
        self.reason = reason
        self.about = about


class NotFound(ClusterError):
    @property
    def kind_missing(self) -> bool:
        """Whether the API server doesn't know the kind at all, or doesn't serve it yet."""
        return self.reason != "NotFound"


class Conflict(ClusterError):
    pass


class Forbidden(ClusterError):
    pass


class Invalid(ClusterError):
    pass


class Unavailable(ClusterError):
    """retry_after_s: what the server asked for, if it did."""

    def __init__(self, message: str, *, reason: str = "", about: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, reason=reason, about=about)
        self.retry_after_s = retry_after_s
