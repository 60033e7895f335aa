-- What context providers have said of a run's turn, as JSON: asked once, kept until the run ends.
ALTER TABLE runs ADD COLUMN contexts text;
