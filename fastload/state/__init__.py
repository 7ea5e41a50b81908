"""Where a loader is in its epoch, saved, and gone on from in another process."""
