"""Hostile trials of the loader beside torch's DataLoader: ``make torture``. Takes an hour or more; no part of pytest.

One file for each family of trials. Each has

- ``TITLE``, ``COUNT`` (trials of a full run), ``EACH`` (how many of them one call of ``trial`` makes) and, where trials
  share a program, ``PROGRAM`` (how many calls);
- ``trial(number, setting)``, which makes trial ``number``, the same each time, and returns an
  :class:`~torture.outcome.Outcome`;
- ``OUTSIDE``: whether ``trial`` runs in the harness and is given a :class:`~torture.programs.Launcher`, or in a program
  (a *series*) that is killed when a trial takes longer than ``LIMIT_S``;
- perhaps ``conclude(total)``, which says what is wrong with the sums of all trials, torch's beside ours.

Every program is a session of its own, so what it leaves running is found by its session.
"""
