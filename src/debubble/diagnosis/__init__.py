"""Diagnose runs: from traces to causes of lost time and the gain of mending each.

Readers (:mod:`~debubble.diagnosis.readers`) turn what a framework wrote into an
:class:`~debubble.diagnosis.observed.Observed`; everything else works on that alone.
"""
