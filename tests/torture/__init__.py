"""Stress trials of the loader, compared with torch's DataLoader: ``make torture``.

A run takes an hour or more and is not part of pytest. There is one file for each family of trials. Each has

- ``TITLE``, ``COUNT`` (trials of a full run), ``EACH`` (trials per call of ``trial``) and, if trials share a program,
  ``PROGRAM`` (calls per program);
- ``trial(number, setting)``, which runs trial ``number``, reproducibly, and returns an
  :class:`~torture.outcome.Outcome`;
- ``OUTSIDE``: whether ``trial`` runs in the harness and is given a :class:`~torture.programs.Launcher`, or in a program
  (a *series*) that is killed if a trial takes longer than ``LIMIT_S``;
- optionally ``conclude(total)``, which returns failures found in the totals of all trials, ours and torch's.

Every program has its own process session, by which the harness finds processes that it leaves running.
"""
