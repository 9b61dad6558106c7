"""The benchmark: the tier beside what users would pick instead, in one run, on one tokenizer.

Guarantee: before any time is shown, every engine's IDs were equal to the reference's full encode of the same text,
for every work item and size; one difference and no time is shown at all.
"""
