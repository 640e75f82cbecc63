"""``python -m overlaptop.agent [options] script.py [args]``: run a training script beside the agent."""

from overlaptop.agent.script.runner import main

if __name__ == "__main__":
    main()
