"""The search for good options: what is drawn, who trains together, and what comes out."""
