"""One replica of the model: who it is, its optimizer, and the exchange of gradients for parameters."""
