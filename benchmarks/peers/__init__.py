"""Programs that other environments run; each stands alone and knows nothing of this package."""
