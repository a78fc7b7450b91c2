"""Experiment trackers: TensorBoard always, others where they are asked for (docs/REPORT.md).

None of their packages is imported before its tracker is opened.
"""
