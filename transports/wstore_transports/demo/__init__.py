"""`wstore demo`: a trainer process publishes, engine processes follow, and every version is compared."""
