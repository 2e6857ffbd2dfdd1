"""Run a model and look inside it: where its layers and their cells are, what a score depends on, and what is explained.

- Which network: `zoo`, `place_zoo`, `hugging_face`, `weights`, `classifier`, `preprocessing`, `black_box`.
- What goes in and comes out: `inputs`, `dimensions`, `nested`, `class_scores`, `targets`, `model_errors`.
- Which layer, and where it lies: `trace`, `layers`, `place_layers`, `layer_output`, `place_check`; see README.md.
- Passes: `capture` (one pass), `replay` (the network from a layer on), `slopes`, `attention`, `cells`.
- What is kept: `session` (what is found out about a model, once), `restore` (the model is left as it was).

May use what needs no network: errors, draws, images. All of egcam's other packages use it.
"""
