"""The AN4 corpus on disk: from CMU's archive (`archive`) or made by speech synthesis (`synthetic`)."""
