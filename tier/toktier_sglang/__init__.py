"""The SGLang plugin: SGLang stays the front, and takes the token IDs of long prompts from a tier.

Guarantee: SGLang gets the IDs that its own tokenizer would make, or its own tokenizer makes them. The plugin is used
only after the tier's tokenizer was shown to be SGLang's own; any doubt about a request sends it to SGLang's own
tokenizer and is counted; one wrong answer found by the shadow check switches the plugin off for good.

Modules, from the outside in: `plugin` and `worker_app` (what SGLang loads), `bridge` (one tokenizer's requests),
`agreement` (is it the same tokenizer), `asking` (text to IDs by way of a session), `shadow`, `counts`, `link` (gRPC),
`conversations` (what the tier holds already), `own`, `probes`, `settings`, `reasons`. Only `plugin` and `worker_app`
know SGLang, and nothing here but them is imported where `TOKTIER_ADDRESS` isn't set.
"""
