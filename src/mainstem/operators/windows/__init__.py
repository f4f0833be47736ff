"""Windows of time: their kinds, when they are shown, and the engines that keep them."""
