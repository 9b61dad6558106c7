"""An agent's conversation through a real SGLang, by text and through the tier, side by side."""
