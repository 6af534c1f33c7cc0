"""What tests share: scenarios drawn by lot, searches that are quick. Nobody else needs it, so it is not installed."""
