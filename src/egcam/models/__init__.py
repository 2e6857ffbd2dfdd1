"""Run a model and look inside it: where its layers and their cells are, what a score depends on, what is explained.

- Which network: `zoo`, `place_zoo`, `hugging_face`, `weights`, `python_files`, `classifier`, `preprocessing`, `crops`,
  `black_box`.
- In and out: `inputs`, `dimensions`, `nested`, `class_names`, `class_scores`, `targets`, `model_errors`.
- Which layer, and where it lies: `trace`, `dependence`, `layers`, `place_layers`, `layer_output`, `place_check`;
  README.md has the idea.
- Passes: `capture` (one), `replay` (from a layer on), `slopes` and `slope_rules`, `attention`, `cells`.
- What stays: `session` (what is found out, once for a model, and its weights), `restore` and `shadow` (the model
  is left as it was).

May use what needs no network: errors, draws, images. All of egcam's other packages use it.
"""
