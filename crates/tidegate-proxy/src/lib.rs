//! Tidegate's transparent proxy: requests wait their turn.
