"""The custom resources as types: what a spec and a status say, and the names that all parts of the operator share."""
