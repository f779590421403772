"""The product of activations with a TT matrix: its plans and their costs, and the computation, forward and backward."""

from comera.contraction.plans import MACHINES, Machine, Plan, Product, candidates, cost_card, plan_contraction

__all__ = ["MACHINES", "Machine", "Plan", "Product", "candidates", "cost_card", "plan_contraction"]
