"""What is wrong with a spec that the CRD's schema and CEL rules let through. Pure.

An error is about what can never work, and says what to change. A warning is about what may be meant, or may come later.
"""

from .admission import validate_admission
from .findings import Findings
from .references import Reference, absent, references_of_admission, references_of_toktier
from .toktier import validate_toktier

__all__ = [
    "Findings",
    "Reference",
    "absent",
    "references_of_admission",
    "references_of_toktier",
    "validate_admission",
    "validate_toktier",
]
