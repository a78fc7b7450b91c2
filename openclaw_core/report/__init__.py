"""What a run did, to look at: plots of its metrics, samples of its steps, and one page with everything (docs/REPORT.md).

The machine that drives the run makes all of it, out of what the control API and the files of the run directory say.
"""
