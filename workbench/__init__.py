"""Find performance bottlenecks in ExecuTorch models.

Open and compare recorded runs
    open_run, Run, Measurement, Comparison, compare, align_measurements, list_runs, sample_run,
    validate_run

Export, measure, report
    export_model, open_program, Program, ExportOptions, measure, MeasureOptions, profile,
    run_config, optimize, OptimizeOptions, read_study, make_report, replay_layer, measure_roof,
    batch, combine_runs, read_history

Models and machine
    list_models, load_model, register_model, EagerModelBase, examine_machine, find_runner,
    read_isa, sample_model, sample_exports, read_exports

Traces and frames
    read_etdump, read_xnn_log, build_ledger, add_categories, summarize_categories, add_up_spans,
    bottleneck_shift, rank_bottlenecks, predict_what_if, place_layers,
    load_case_study, export_trace

Figures
    plot_bottlenecks, plot_categories, plot_heatmap, plot_history, plot_isa_levels, plot_iterations,
    plot_latencies, plot_layer_types, plot_layers, plot_machine_code, plot_operators, plot_roofline,
    plot_shift, plot_sizes, plot_speedups, plot_stack, plot_threads, plot_timeline, plot_variants,
    plot_what_if

Tables and widgets
    show, explore, pick_measurements, pick_run, show_progress,
    LiveRun

Names are imported when they are first used; ``help(workbench.NAME)`` describes one.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
