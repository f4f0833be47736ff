"""Programs: functions from a mainstem to flows, which are checked, started, watched and stopped."""
