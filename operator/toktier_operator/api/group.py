"""Names that the operator, its manifests and its users share. Labels and names of objects are in `resources.names`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUP: Final = "toktier.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

MAX_NAME_CHARS: Final = 40
"""Of a custom resource: what is made of it has longer names, and labels end at 63."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of custom resource as the API server calls it."""

    kind: str
    plural: str
    short: str

    @property
    def crd(self) -> str:
        return f"{self.plural}.{GROUP}"


TOKENIZER_ADMISSION: Final = Resource("TokenizerAdmission", "tokenizeradmissions", "ta")
TOKTIER: Final = Resource("TokTier", "toktiers", "tt")

OPERATOR: Final = "toktier-operator"
"""What the operator is called wherever it leaves its name: field manager, `managed-by`, component of Events."""
