"""Programs: functions from a mainstem to flows, looked at, started, watched and stopped."""
