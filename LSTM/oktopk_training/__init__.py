"""The training program: options, ranks, the run's log and reports, saved models, and the tasks that are trained."""
