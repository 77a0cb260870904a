"""Prediction of step times: costs of exchanges, a profile of the step, and a simulation of both."""
