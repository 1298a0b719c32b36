"""Diagnosis of runs: from traces to causes of lost time and the gain of each fix.

Readers (:mod:`~debubble.diagnosis.readers`) convert the files of a framework to an
:class:`~debubble.diagnosis.observed.Observed`, the only input of everything else.
"""
