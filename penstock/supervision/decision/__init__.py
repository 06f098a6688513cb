"""The next step towards one live driver per app, as pure functions of facts."""
