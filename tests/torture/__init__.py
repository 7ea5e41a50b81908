"""Hostile trials of the loader beside torch's DataLoader: ``make torture``. Takes an hour or more; no part of pytest.

One file for each family of trials. Each has

- ``TITLE``, ``COUNT`` (how many trials a full run has) and ``EACH`` (how many of them one call of ``trial`` makes);
- ``trial(number, setting)``, which makes trial ``number``, the same each time, and returns an
  :class:`~torture.outcome.Outcome`;
- ``OUTSIDE``: whether ``trial`` runs in the harness and is given a :class:`~torture.programs.Launcher` to start programs
  with, or in a program of its own (a *series*), which is killed when a trial takes longer than ``LIMIT_S``.

Every program is a session of its own, so what it leaves running is found by its session.
"""
