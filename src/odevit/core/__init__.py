"""The paper, to be read alone: dx/dt = G(x) + F(x) - leak (x - x0), and the model around it."""
