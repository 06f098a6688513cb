"""The app `orders`."""
