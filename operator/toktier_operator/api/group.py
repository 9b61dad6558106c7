"""Names that the operator, its manifests and its users share: group, kinds, labels, annotations."""

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

FIELD_MANAGER: Final = "toktier-operator"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_TOKTIER: Final = f"{GROUP}/toktier"
LABEL_ADMISSION: Final = f"{GROUP}/admission"

APP_NAME: Final = "toktier"
MANAGED_BY: Final = "toktier-operator"
COMPONENT_TIER: Final = "tier"
COMPONENT_ADMISSION: Final = "admission"

ANNOTATION_READMIT: Final = f"{GROUP}/readmit"
"""On a TokenizerAdmission: any value that it didn't have before asks for a new run, whatever else is unchanged."""
