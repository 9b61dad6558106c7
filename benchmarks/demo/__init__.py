"""The demo: admit a real tokenizer, replay a long agent session through the tier, and check every turn."""
