"""Fast paths in plain torch, for a whole call at a time: equal results, hand-written backwards, little memory.

An evaluation hands a call to one of these where it serves, and computes it by its definition otherwise;
``kernel="torch"`` always does the latter.

=========== =======================================================================================
``spans``   finite states: chunks of pairs, and moments between them, a span of many chunks at once
``blocks``  every pair below the diagonal, a block of queries at a time
=========== =======================================================================================
"""
