"""Every picture is drawn here. Never imports torch."""
