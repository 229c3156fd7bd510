"""Find performance bottlenecks in ExecuTorch models.

Open and compare recorded runs
    open_run, Run, Measurement, Comparison, compare, align_measurements, sample_run,
    combine_runs, read_history, read_study, validate_run

Export, measure, report
    profile, export_model, ExportOptions, Program, open_program, measure, MeasureOptions,
    run_config, optimize, OptimizeOptions, batch, make_report, replay_layer, measure_roof,
    check_findings,
    load_ipython_extension, LiveRun

Models and machine
    list_models, load_model, register_model, EagerModelBase, read_exports, sample_file,
    examine_machine, find_runner, read_isa, WorkbenchError

Traces
    read_etdump, read_xnn_log, build_ledger, predict_what_if, export_trace

Figures, tables and widgets
    show, explore, pick, pick_measurements, pick_run, plot_bottlenecks, plot_categories,
    plot_history, plot_iterations, plot_latencies, plot_operators, plot_roofline, plot_shift,
    plot_speedups, plot_variants

Names are imported when they are first used; ``help(workbench.NAME)`` describes one.
"""

import lazy_loader

from workbench.parameters import check_parameters

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
check_parameters()
