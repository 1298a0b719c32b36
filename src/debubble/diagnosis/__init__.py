"""Why a run took as long as it did: traces in, causes and gains out.

Readers (:mod:`~debubble.diagnosis.readers`) turn what a framework wrote into an
:class:`~debubble.diagnosis.observed.Observed`; everything else works on that alone.
"""
