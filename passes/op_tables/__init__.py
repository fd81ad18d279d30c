"""The table of classes, one class a file. ``bi_inductor.passes.op_classes`` reads it.

Names are those of the op packet ("aten.add" covers add.Tensor and add.Scalar). An op of ATen that can be in a post-grad graph and has no
name here fails a test (tests/passes/test_op_tables.py), and a compile refuses it.
"""
