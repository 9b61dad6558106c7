"""The Kubernetes operator: TokenizerAdmission and TokTier."""
