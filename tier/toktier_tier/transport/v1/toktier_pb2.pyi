from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Route(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTE_UNSPECIFIED: _ClassVar[Route]
    ROUTE_REPAIR: _ClassVar[Route]
    ROUTE_ENCODE: _ClassVar[Route]
    ROUTE_REFERENCE: _ClassVar[Route]
    ROUTE_UNCHANGED: _ClassVar[Route]
ROUTE_UNSPECIFIED: Route
ROUTE_REPAIR: Route
ROUTE_ENCODE: Route
ROUTE_REFERENCE: Route
ROUTE_UNCHANGED: Route

class Patch(_message.Message):
    __slots__ = ("keep", "ids", "resume", "total", "revision", "route", "reason", "certificate")
    KEEP_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    keep: int
    ids: bytes
    resume: int
    total: int
    revision: int
    route: Route
    reason: str
    certificate: Certificate
    def __init__(self, keep: _Optional[int] = ..., ids: _Optional[bytes] = ..., resume: _Optional[int] = ..., total: _Optional[int] = ..., revision: _Optional[int] = ..., route: _Optional[_Union[Route, str]] = ..., reason: _Optional[str] = ..., certificate: _Optional[_Union[Certificate, _Mapping]] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("fingerprint", "rule_digest", "window_chars", "boundary_chars", "resume_chars", "text_chars", "overlap_tokens", "overlap_digest")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RULE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WINDOW_CHARS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_CHARS_FIELD_NUMBER: _ClassVar[int]
    RESUME_CHARS_FIELD_NUMBER: _ClassVar[int]
    TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    rule_digest: str
    window_chars: int
    boundary_chars: int
    resume_chars: int
    text_chars: int
    overlap_tokens: int
    overlap_digest: bytes
    def __init__(self, fingerprint: _Optional[str] = ..., rule_digest: _Optional[str] = ..., window_chars: _Optional[int] = ..., boundary_chars: _Optional[int] = ..., resume_chars: _Optional[int] = ..., text_chars: _Optional[int] = ..., overlap_tokens: _Optional[int] = ..., overlap_digest: _Optional[bytes] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("start_chars", "stop_chars")
    START_CHARS_FIELD_NUMBER: _ClassVar[int]
    STOP_CHARS_FIELD_NUMBER: _ClassVar[int]
    start_chars: int
    stop_chars: int
    def __init__(self, start_chars: _Optional[int] = ..., stop_chars: _Optional[int] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("model", "text", "session", "expected_revision", "untrusted")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    UNTRUSTED_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    session: str
    expected_revision: int
    untrusted: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., session: _Optional[str] = ..., expected_revision: _Optional[int] = ..., untrusted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("patch",)
    PATCH_FIELD_NUMBER: _ClassVar[int]
    patch: Patch
    def __init__(self, patch: _Optional[_Union[Patch, _Mapping]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("model", "session", "text", "untrusted")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNTRUSTED_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    text: str
    untrusted: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., text: _Optional[str] = ..., untrusted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("patch",)
    PATCH_FIELD_NUMBER: _ClassVar[int]
    patch: Patch
    def __init__(self, patch: _Optional[_Union[Patch, _Mapping]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("model", "session", "delta", "expected_revision", "untrusted")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    UNTRUSTED_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    delta: str
    expected_revision: int
    untrusted: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., delta: _Optional[str] = ..., expected_revision: _Optional[int] = ..., untrusted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("patch",)
    PATCH_FIELD_NUMBER: _ClassVar[int]
    patch: Patch
    def __init__(self, patch: _Optional[_Union[Patch, _Mapping]] = ...) -> None: ...

class EditRequest(_message.Message):
    __slots__ = ("model", "session", "start_chars", "stop_chars", "replacement", "expected_revision", "untrusted")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    START_CHARS_FIELD_NUMBER: _ClassVar[int]
    STOP_CHARS_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    UNTRUSTED_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    start_chars: int
    stop_chars: int
    replacement: str
    expected_revision: int
    untrusted: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., start_chars: _Optional[int] = ..., stop_chars: _Optional[int] = ..., replacement: _Optional[str] = ..., expected_revision: _Optional[int] = ..., untrusted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class EditResponse(_message.Message):
    __slots__ = ("patch",)
    PATCH_FIELD_NUMBER: _ClassVar[int]
    patch: Patch
    def __init__(self, patch: _Optional[_Union[Patch, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("model", "session")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("closed",)
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    closed: bool
    def __init__(self, closed: bool = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("model", "session", "include_ids", "include_state")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STATE_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    include_ids: bool
    include_state: bool
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., include_ids: bool = ..., include_state: bool = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("revision", "text_chars", "tokens", "state_bytes", "ids", "state")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    text_chars: int
    tokens: int
    state_bytes: int
    ids: bytes
    state: bytes
    def __init__(self, revision: _Optional[int] = ..., text_chars: _Optional[int] = ..., tokens: _Optional[int] = ..., state_bytes: _Optional[int] = ..., ids: _Optional[bytes] = ..., state: _Optional[bytes] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("model", "ids", "skip_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    ids: bytes
    skip_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., ids: _Optional[bytes] = ..., skip_special_tokens: bool = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("name", "models", "fingerprint", "sha256", "reference_version", "verdict", "reason", "rule_digest", "encoder", "whole_form", "quarantined", "sessions", "state_bytes", "admission")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FORM_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    models: _containers.RepeatedScalarFieldContainer[str]
    fingerprint: str
    sha256: str
    reference_version: str
    verdict: str
    reason: str
    rule_digest: str
    encoder: str
    whole_form: bool
    quarantined: bool
    sessions: int
    state_bytes: int
    admission: str
    def __init__(self, name: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., fingerprint: _Optional[str] = ..., sha256: _Optional[str] = ..., reference_version: _Optional[str] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., rule_digest: _Optional[str] = ..., encoder: _Optional[str] = ..., whole_form: bool = ..., quarantined: bool = ..., sessions: _Optional[int] = ..., state_bytes: _Optional[int] = ..., admission: _Optional[str] = ...) -> None: ...

class HandoffRequest(_message.Message):
    __slots__ = ("model", "session", "state", "chain")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    model: str
    session: str
    state: bytes
    chain: bytes
    def __init__(self, model: _Optional[str] = ..., session: _Optional[str] = ..., state: _Optional[bytes] = ..., chain: _Optional[bytes] = ...) -> None: ...

class HandoffResponse(_message.Message):
    __slots__ = ("revision", "text_chars", "tokens")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    text_chars: int
    tokens: int
    def __init__(self, revision: _Optional[int] = ..., text_chars: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class EncodeAllRequest(_message.Message):
    __slots__ = ("model", "text", "session", "chain", "key", "untrusted")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UNTRUSTED_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    session: str
    chain: bytes
    key: str
    untrusted: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., session: _Optional[str] = ..., chain: _Optional[bytes] = ..., key: _Optional[str] = ..., untrusted: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class EncodeAllResponse(_message.Message):
    __slots__ = ("ids", "session", "revision", "route", "reason")
    IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    session: str
    revision: int
    route: Route
    reason: str
    def __init__(self, ids: _Optional[bytes] = ..., session: _Optional[str] = ..., revision: _Optional[int] = ..., route: _Optional[_Union[Route, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class MultiplexRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "method", "request", "timeout_ms", "metadata", "cancelled")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    id: int
    method: str
    request: bytes
    timeout_ms: int
    metadata: _containers.ScalarMap[str, str]
    cancelled: bool
    def __init__(self, id: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., cancelled: bool = ...) -> None: ...

class MultiplexResponse(_message.Message):
    __slots__ = ("answers", "last")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    last: bool
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., last: bool = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "response", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: bytes
    failure: Failure
    def __init__(self, id: _Optional[int] = ..., response: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("status", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    status: int
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[int] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...
