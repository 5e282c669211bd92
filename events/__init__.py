"""An embedded, durable, at-least-once event bus for the modules of an agent."""
